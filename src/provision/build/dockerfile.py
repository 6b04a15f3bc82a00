"""Renders the build context of a Pin. Pure: the same inputs give the same bytes.

Dockerfile syntax: https://docs.docker.com/reference/dockerfile/ (escape character, LABEL, RUN).
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Collection, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from provision.catalogue import Catalogue, Entry, Recipe, RecipeSource, Variant
from provision.catalogue.fields import CONTROL
from provision.distros.distro import distro_named, known_distros, release_of, source_names
from provision.distros.family import headers_of
from provision.errors import NotFoundError, ProvisionError, UsageError
from provision.explain import fill
from provision.files import templates_dir, write_atomic
from provision.manifest import ForeignRoot, HostNeeds
from provision.pin import (
    FORMAT,
    ClosurePackage,
    DistroPin,
    GitCommit,
    GitSource,
    PackagePin,
    Pin,
    RunfileSource,
    TreePin,
    names_of,
)
from provision.sources.candidates import scripts_of, unpacking
from provision.sources.runfile import FILES, LAYER

# Characters of a label that stay on one line.
_LONG = 8000
# Runs the others of ours in the build container.
STEP = "step.py"
PREPARE_TREE = "prepare_tree.py"
# The family of kernels whose headers are no packages, whatever the distro.
TREE = "tree"
# Our programs that run in the build container: the file by its name in the container.
_PROGRAMS = {
    "collect.py": "build/collector.py",
    "loader_script.py": "loader_script.py",
    STEP: "build/step.py",
    "unpack.py": "build/unpack_source.py",
}
_TREE_PROGRAM = "distros/prepare_tree.py"
# The folder of scripts that only builds from a dkms.conf run, and that of what images run.
_DKMS = "dkms"
_LOADER = "loader"
# The template that serves a family of distros.
_TEMPLATES = {"apt": "apt", "dnf": "rpm", "zypper": "rpm"}
# The family whose script installs the packages of a kernel tree's toolchain.
_SCRIPTS = {TREE: "apt"}


def shell_word(text: str) -> str:
    """Return ``text`` as one word of a RUN instruction's shell line."""
    return shlex.quote(_printable(text))


def shell_command(arguments: list[str], variables: dict[str, str]) -> str:
    """Return an argument list as a shell command.

    Args:
        variables: Text to find in the words, and the shell variable that takes its place there.
    """
    return " ".join(_with_variables(word, variables) for word in arguments)


def label_value(text: str) -> str:
    """Return ``text`` as the value of a LABEL instruction."""
    escaped = re.sub(r'(["$\\])', r"\\\1", _printable(text))
    if len(escaped) > _LONG:
        # A Dockerfile's line may have 64 KiB, and a Pin with some hundred packages has more. The
        # engine puts continued lines together as they are; none of these begins as a comment.
        escaped = escaped.replace("},{", "},\\\n{")
    return f'"{escaped}"'


def toml_value(value: object) -> str:
    """Return a text, or a list of texts, as TOML has it.

    Its basic strings take JSON's escapes, but no pairs of surrogates, and no bare DEL:
    https://toml.io/en/v1.0.0#string
    """
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def one_line(text: str) -> str:
    """Return text for people on one line: every run of blanks and line ends as one blank."""
    return " ".join(text.split())


def _with_variables(word: str, variables: dict[str, str]) -> str:
    if not any(marker in word for marker in variables):
        return shell_word(word)
    pattern = "|".join(re.escape(marker) for marker in variables)
    parts = re.split(f"({pattern})", word)
    return "".join(
        f'"${{{variables[part]}}}"' if part in variables else shell_word(part)
        for part in parts
        if part
    )


def _printable(text: str) -> str:
    if CONTROL.search(text):
        raise UsageError(
            f"{text!r} can't go into a Dockerfile: it holds a control character",
            resolution="Remove line ends and other control characters from the recipe's values.",
        )
    return text


class Templates(NamedTuple):
    """The files from which the Dockerfiles of one distro family are rendered."""

    dockerfile: str
    sources: Mapping[str, str]
    # Files that go into the context as they are, by name.
    helpers: Mapping[str, bytes]
    # The helpers that only builds from some kinds of sources run.
    special: frozenset[str] = frozenset()

    def helpers_of(self, scripts: Collection[str]) -> dict[str, bytes]:
        """Return the helpers of every build, and those of the special ones that are named."""
        return {
            name: content
            for name, content in self.helpers.items()
            if name not in self.special or name in scripts
        }


def fill_template(name: str, sources: Mapping[str, str], values: Mapping[str, object]) -> str:
    """Return the text of a template with values in it."""
    from jinja2 import (  # noqa: PLC0415 - 0.02 s that a command which renders nothing doesn't pay
        DictLoader,
        Environment,
        StrictUndefined,
        select_autoescape,
    )

    environment = Environment(
        loader=DictLoader(dict(sources)),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        # Nothing here is HTML: the filters quote what comes from data.
        autoescape=select_autoescape(),
    )
    environment.filters |= {"shell": shell_word, "label": label_value, "toml": toml_value}
    return environment.get_template(name).render(values)


def fill_shipped(template: str, /, **values: object) -> str:
    """Return the text of a template that comes with provision, with values in it."""
    return fill_template(template, {template: (templates_dir() / template).read_text()}, values)


def template_family(distro_id: str) -> str:
    """Return the family of a distro, by its ID in os-release."""
    distro = distro_named(distro_id)
    family = _TEMPLATES.get(distro.family) if distro else None
    if family is None:
        known = {name.partition(":")[0] for name in known_distros()}
        raise NotFoundError(
            f"There is no Dockerfile template for the distro '{distro_id}'",
            resolution=f"Distros with one: {', '.join(sorted(known))}.",
        )
    return family


def load_templates(family: str) -> Templates:
    """Read the templates of a family of distros, or of kernel trees (``TREE``)."""
    directory = templates_dir()
    main = directory / f"Dockerfile.{family}.j2"
    texts = [main, *sorted((directory / "macros").glob("*.j2"))]
    sources = {str(path.relative_to(directory)): path.read_text() for path in texts}
    folder = directory / _SCRIPTS.get(family, family)
    scripts = sorted(path for path in folder.glob("*") if path.is_file())
    scripts += sorted((directory / _LOADER).glob("*"))
    own = {name: program_text(name) for name in _PROGRAMS}
    special = {path.name: path.read_bytes() for path in sorted((directory / _DKMS).glob("*"))}
    if family == TREE:
        own[PREPARE_TREE] = _packaged(_TREE_PROGRAM)
    return Templates(
        dockerfile=main.name,
        sources=sources,
        helpers=own | special | {path.name: path.read_bytes() for path in scripts},
        special=frozenset(special),
    )


def program_text(name: str) -> bytes:
    """Return a program that runs in build containers, by its name there."""
    return _packaged(_PROGRAMS[name])


def _packaged(path: str) -> bytes:
    return resources.files("provision").joinpath(path).read_bytes()


# Paths in the build context: user space as a layer, and the list of what is in it.
_LAYER = "userspace.tar"
_LISTED = "userspace.json"
_MAJOR = re.compile(r"^(?:[0-9]+:)?([0-9]+)")


def _compiler_paths(pin: Pin) -> Mapping[str, str | None] | None:
    """Return where headers and compiler of a Pin are; None: its compiler is no package.

    ``build`` and ``source`` are the kernel's folders, unless they are in a kernel tree; ``path``
    is the folder of the compiler's programs, where that is not on the usual search path.
    """
    compiler = pin.compiler
    if compiler is None and pin.tree is not None:
        return None
    match = _MAJOR.match(compiler.version) if compiler else None
    if compiler is None or match is None:
        raise ProvisionError(
            f"The Pin names no version of a compiler: {compiler}.",
            resolution=f"Resolve again: provision resolve {pin.driver.name}",
        )
    distro, _release = release_of(installed_from(pin) or pin.distro)
    build, source = None, None
    if pin.tree is None:
        query = headers_of(distro, pin.kernel.release, pin.kernel.architecture)
        build, source = query.build, query.source
    values = {"major": match[1]}
    for rule in distro.compilers:
        if fill(rule.package, values) == compiler.name:
            return {
                "build": build,
                "source": source,
                "command": rule.command,
                "major": match[1],
                "path": rule.path and fill(rule.path, values),
            }
    raise NotFoundError(
        f"The Pin's compiler, {compiler.name}, is not a package of {distro.name}'s compilers.",
        resolution="Resolve again.",
    )


def installed_from(pin: Pin) -> DistroPin | None:
    """Return the distro whose packages are installed; None: the base image has everything."""
    return pin.distro if pin.tree is None else pin.tree.toolchain


def closure_files(pin: Pin) -> dict[str, str]:
    """Return the large files of a build context: sha256 by relative path.

    Commits are not among them: a container of the toolchain fetches those.
    """
    files = {
        f"{folder}/{package.location.rpartition('/')[2]}": package.sha256
        for folder, packages in closure_parts(pin).items()
        for package in packages
    }
    for source in pin.sources:
        if source.file is not None and not isinstance(source, RunfileSource):
            files[f"sources/{source.file}"] = source.file
    return files | (tree_files(pin.tree) if pin.tree else {})


def tree_files(tree: TreePin) -> dict[str, str]:
    """Return the files of a kernel tree in a build context: sha256 by relative path."""
    files = {
        "tree.tar": tree.tree,
        "config": tree.config,
        "Module.symvers": tree.symvers,
        "compiler.tar": tree.compiler,
    }
    return {f"kernel/{name}": digest for name, digest in files.items() if digest}


def runfile_parts(pin: Pin, directory: str) -> dict[str, str]:
    """Return the files of a build context that are parts of a .run: the part by path."""
    files = {}
    for source in pin.sources:
        if isinstance(source, RunfileSource):
            files[f"sources/{source.sha256}"] = directory.partition("/")[0]
            files[_LAYER] = LAYER
            files[_LISTED] = FILES
    return files


def closure_parts(pin: Pin) -> dict[str, tuple[ClosurePackage, ...]]:
    """Return the packages of a Pin by their folder in the build context.

    ``headers`` are those of the kernel, on which no other package depends. ``packages`` are
    installed before them, in a layer that the builds for other kernels share.
    """
    names = {header.name for header in pin.headers} if pin.tree is None else set()
    headers = tuple(package for package in pin.closure if package.name in names)
    packages = tuple(package for package in pin.closure if package.name not in names)
    return {"packages": packages, "headers": headers}


def closure_sums(pin: Pin) -> dict[str, bytes]:
    """Return the lists of checksums with which the build container verifies the packages."""
    return {
        f"{folder}.sha256": "".join(
            sorted(f"{one.sha256}  {one.location.rpartition('/')[2]}\n" for one in packages)
        ).encode()
        for folder, packages in closure_parts(pin).items()
        if folder != "headers" or pin.tree is None
    }


# The first instruction with something of the driver in it.
_BUILD_STAGE = "FROM toolchain AS build\n"
# The folder of the driver's unpacked source in the build.
SOURCE = "/source"
_JOBS = "{jobs}"
# As which version a GPU operator finds the image.
OPERATOR_LABEL = "provision.operator.version"
# Folders of programs in an image, as engines have them, and where user space is.
_FOLDERS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
_USER_SPACE = "/opt/driver"


class RenderedContext(NamedTuple):
    """A build context."""

    # Contents by relative path, sorted. All are plain files of mode 0644: the Dockerfile names the
    # interpreter of those that run.
    files: Mapping[str, bytes]
    # Files that are too large to be rendered: sha256 by relative path.
    downloads: Mapping[str, str] = {}
    # Files that are parts of a .run: the part by relative path.
    parts: Mapping[str, str] = {}
    # Commits whose objects lie below ``git/``.
    commits: tuple[GitCommit, ...] = ()

    @property
    def dockerfile(self) -> str:
        """The Dockerfile's text."""
        return self.files["Dockerfile"].decode()

    @property
    def digest(self) -> str:
        """Sha256 over the paths and contents of all files, of which none is read."""
        sums = {path: hashlib.sha256(data).hexdigest() for path, data in self.files.items()}
        lines = [f"{digest}  {path}\n" for path, digest in {**sums, **self.downloads}.items()]
        return hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()

    def split(self) -> tuple[RenderedContext, RenderedContext]:
        """Return the contexts of the toolchain's stages, and of those that begin with its image.

        The first has nothing of the driver, so all drivers with the same packages share it.
        """
        stages, _, rest = self.dockerfile.partition(_BUILD_STAGE)
        lines = [line for line in stages.splitlines() if line and not line.startswith("#")]
        own = f"ARG BASE_IMAGE\nFROM ${{BASE_IMAGE}} AS build\n{rest}"
        return self._part("\n".join([*lines, ""])), self._part(own)

    def _part(self, dockerfile: str) -> RenderedContext:
        """Return the context of a part of the Dockerfile: the files that it copies."""
        copied = {
            word
            for line in dockerfile.splitlines()
            if line.startswith(("COPY ", "ADD "))
            for word in line.split()[1:-1]
        }

        def used(files: Mapping[str, Any]) -> dict[str, Any]:
            return {
                path: one
                for path, one in files.items()
                if path in copied or f"{path.partition('/')[0]}/" in copied
            }

        files = {**used(self.files), "Dockerfile": dockerfile.encode()}
        commits = self.commits if "git/" in copied else ()
        return RenderedContext(files, used(self.downloads), used(self.parts), commits)

    def write(self, directory: Path) -> None:
        """Write the rendered files below a folder; files of other names there stay."""
        for name, content in self.files.items():
            write_atomic(directory / name, content)


def placeholders(pin: Pin) -> dict[str, str]:
    """Return the values of a recipe's placeholders, except ``jobs``, which the build call sets."""
    modules = f"/lib/modules/{pin.kernel.release}"
    names = names_of(pin.kernel.architecture)
    return {
        "arch": names.kernel,
        "kernel": pin.kernel.release,
        "kernel_build": f"{modules}/build",
        "kernel_source": f"{modules}/source",
        "machine": pin.kernel.architecture,
        "multiarch": names.multiarch,
        "source": SOURCE,
        "version": pin.driver.version,
    }


def build_plan(pin: Pin, recipe: Recipe, variant: Variant[RecipeSource]) -> bytes:
    """Return the content of ``build.json``: the same inputs give the same bytes."""
    values = placeholders(pin)
    directory = fill(variant.build.directory, values)
    plan: dict[str, Any] = {
        "schema": 1,
        "pin": pin.model_dump(mode="json", by_alias=True),
        "pin_digest": pin.digest,
        "kernel": pin.kernel.release,
        "licences": [one_line(licence) for licence in variant.licences],
        "directory": directory,
        "modules": [fill(module, values) for module in variant.build.modules],
        "files": [
            {
                "kind": file.kind,
                "from": fill(file.source, values),
                "to": fill(file.to, values),
                "links": [fill(link, values) for link in file.links],
                "features": list(file.features),
            }
            for file in variant.files
        ],
        "container": variant.container.model_dump(mode="json", exclude_none=True),
        "host": recipe.host.model_dump(mode="json"),
        **({"check": recipe.check.model_dump(mode="json")} if recipe.check else {}),
        "cards": [fill(path, values) for path in recipe.hardware.supported],
    }
    return (json.dumps(plan, sort_keys=True, indent=1) + "\n").encode()


def tree_plan(tree: TreePin, kernel: str, compiler: PackagePin | None) -> bytes:
    """Return the content of ``tree.json``, by which the container prepares the kernel's tree."""
    cc = compiler.name if compiler else "clang" if tree.llvm else "gcc"
    plan = {"kernel": kernel, "kind": tree.kind, "cc": cc}
    return (json.dumps(plan, sort_keys=True, indent=1) + "\n").encode()


def render(
    pin: Pin,
    recipe: Recipe,
    *,
    templates: Templates,
    patches: Mapping[str, bytes],
) -> RenderedContext:
    """Render the build context of a Pin."""
    if pin.format != FORMAT:
        raise _changed(f"format of builds, {FORMAT}, is")
    for patch in pin.patches:
        content = patches.get(patch.name)
        if content is None or hashlib.sha256(content).hexdigest() != patch.sha256:
            raise _changed(f"patch '{patch.name}' is")
    variant = variant_of(pin, recipe)
    text = _dockerfile(pin, variant, templates, recipe)
    contents = {"Dockerfile": text.encode(), "build.json": build_plan(pin, recipe, variant)}
    contents |= templates.helpers_of(scripts_of(variant))
    contents |= {f"patches/{patch.name}": patches[patch.name] for patch in pin.patches}
    if pin.tree is not None:
        contents["kernel/tree.json"] = tree_plan(pin.tree, pin.kernel.release, pin.compiler)
    contents |= closure_sums(pin)
    directory = fill(variant.build.directory, placeholders(pin))
    return RenderedContext(
        {name: contents[name] for name in sorted(contents)},
        closure_files(pin),
        runfile_parts(pin, directory),
        tuple(one for s in pin.sources if isinstance(s, GitSource) for one in s.commits),
    )


def _changed(what: str) -> ProvisionError:
    return ProvisionError(
        f"The {what} not what the Pin was made from",
        resolution="Run 'provision resolve' again: the new Pin names a new image.",
    )


def variant_of(pin: Pin, recipe: Recipe) -> Variant[RecipeSource]:
    """Return the variant of a recipe that a Pin is built from."""
    names = source_names(installed_from(pin) or pin.distro)
    variant = recipe.variant(names, pin.driver.flavour, pin.driver.version)
    if variant is None:
        raise _changed(f"recipe of '{recipe.name}' is")
    return variant


def pinned_entry(catalogue: Catalogue, pin: Pin) -> Entry:
    """Return the entry of a Pin's driver, if its recipe is still what the Pin was made from."""
    entry = catalogue.entry(pin.driver.name)
    if recipe_digest(entry.recipe, variant_of(pin, entry.recipe)) != pin.recipe:
        raise ProvisionError(
            f"The recipe of '{pin.driver.name}' ({entry.folder}) is not what the Pin was made"
            " from.",
            resolution="Use the catalogue that it was made from (--catalogue), or resolve again.",
        )
    return entry


def recipe_digest(recipe: Recipe, variant: Variant[RecipeSource]) -> str:
    """Return the sha256 of the parts of a recipe that reach the artifact of a variant.

    The other parts have a field of their own in the Pin (source, patches, packages), or no effect
    on the modules and files (the summary, the known kernels, other flavours and sources).
    """
    parts: dict[str, Any] = {
        "build": variant.build.model_dump(mode="json", exclude={"package"}),
        "licences": list(variant.licences),
        "package": variant.package,
        "files": [file.model_dump(mode="json", by_alias=True) for file in variant.files],
        "container": variant.container.model_dump(mode="json", exclude_none=True),
    }
    # Left out where it is empty, so that the Pins of other drivers stay as they were.
    if recipe.host != HostNeeds():
        parts["host"] = recipe.host.model_dump(mode="json")
    if recipe.check is not None:
        parts["check"] = recipe.check.model_dump(mode="json")
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _dockerfile(
    pin: Pin, variant: Variant[RecipeSource], templates: Templates, recipe: Recipe
) -> str:
    before, after = unpacking(variant, pin.sources)
    closure = closure_parts(pin)
    values: dict[str, object] = {
        "pin": pin,
        "closure": {"tools": closure["packages"], "headers": closure["headers"]},
        "toolchain": _compiler_paths(pin),
        "parts": {
            "are_files": any(source.file for source in pin.sources),
            "are_commits": any(isinstance(source, GitSource) for source in pin.sources),
            "have_layer": any(isinstance(source, RunfileSource) for source in pin.sources),
            "before": before,
            "after": after,
        },
        "build": _build(pin, variant),
        "pod": _pod_environment(recipe.host.root),
        "labels": _labels(pin, variant, recipe),
    }
    return fill_template(templates.dockerfile, templates.sources, values)


def _build(pin: Pin, variant: Variant[RecipeSource]) -> dict[str, object]:
    values = placeholders(pin)
    build = variant.build
    directory = fill(build.directory, values)
    command = [fill(word, values) for word in build.command]
    return {
        "archive": None if build.archive is None else fill(build.archive, values),
        "directory": "/source" if directory == "." else f"/source/{directory}",
        "command": shell_command(command, {_JOBS: "JOBS"}),
        "scripts": scripts_of(variant),
    }


def _pod_environment(root: ForeignRoot | None) -> dict[str, str]:
    """Return the variables by which programs of the driver run in a pod of the image."""
    if root is None or root.pod is None:
        return {}
    folders = (*_FOLDERS, f"{_USER_SPACE}/usr/bin")
    own = {"PATH": ":".join(folders), "LD_LIBRARY_PATH": f"{_USER_SPACE}{root.libraries}"}
    return own | root.pod.environment


def _labels(pin: Pin, variant: Variant[RecipeSource], recipe: Recipe) -> dict[str, str]:
    driver = pin.driver
    licences = [one_line(licence) for licence in variant.licences]
    # Only parts of the Pin, so that one Pin gives the same bytes whatever a summary says now.
    labels = {
        "title": f"{driver.name} {driver.version} ({driver.flavour})"
        f" for Linux {pin.kernel.release}",
        "version": driver.version,
        # https://spdx.github.io/spdx-spec/v2.3/SPDX-license-expressions/
        "licenses": " AND ".join(
            f"({text})" if " OR " in text and len(licences) > 1 else text for text in licences
        ),
        "base.name": pin.base.image,
        "base.digest": pin.base.digest,
    }
    own = {"provision.pin": pin.canonical_json(), "provision.pin.digest": pin.digest}
    if recipe.host.root is not None and recipe.host.root.pod is not None:
        # An operator knows no flavours, so those besides the usual one are part of the version.
        is_usual = driver.flavour == recipe.default_flavour
        own[OPERATOR_LABEL] = driver.version if is_usual else f"{driver.version}-{driver.flavour}"
    return {f"org.opencontainers.image.{key}": value for key, value in labels.items()} | own
