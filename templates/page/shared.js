"use strict";
// What the pages have in common: details in a dialog, and the theme.
const page = (() => {
  const byId = (id) => document.getElementById(id);
  const root = document.documentElement, dialog = byId("dialog");
  root.classList.add("scripted");

  const open = (id) => {
    const article = byId(id);
    if (!article) return;
    const copy = article.cloneNode(true);
    copy.removeAttribute("id");
    copy.removeAttribute("aria-labelledby");
    for (const part of copy.querySelectorAll("[id]")) part.removeAttribute("id");
    copy.querySelector("h3").id = "dialog-title";
    copy.querySelector(".back").remove();
    byId("content").replaceChildren(copy);
    dialog.showModal();
    dialog.scrollTop = 0;
  };
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });

  const theme = byId("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const showTheme = () => theme.setAttribute("aria-pressed", String(isDark()));
  theme.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    showTheme();
  });
  system.addEventListener("change", showTheme);
  showTheme();
  return { byId, open };
})();
