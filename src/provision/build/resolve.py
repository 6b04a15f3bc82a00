"""Decides every input of a build: Request → Pin.

The kernel says where its headers are (``choose_tree``), the recipe and its vendor which version is
built, and the distro's solver which packages are installed. A Pin may also come from a file, which
``resolve`` writes and any machine can build from at any later time.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args
from urllib.parse import urlsplit

from pydantic import Field, ValidationError

from provision.build.base_image import base_request, ensure_distro_base
from provision.build.dockerfile import (
    pinned_entry,
    recipe_digest,
)
from provision.build.package_store import Closure
from provision.build.request import (
    DriverRequest,
    choose_distro,
    choose_tree,
    developer_image,
    own_kernel,
    packaged_distro,
)
from provision.build.solve import SolvingSession
from provision.build.trees import prepare_tree
from provision.build.versions import (
    cards_for,
    choose_version,
    version_context,
)
from provision.build.workspace import Settings
from provision.catalogue import Entry, Recipe
from provision.catalogue.suitability import chosen_flavour
from provision.distros.distro import source_names
from provision.documents import load_json, mistakes_of, refusing
from provision.errors import (
    ConfigError,
    Mistake,
    NotFoundError,
    UsageError,
    redact,
)
from provision.pin import (
    FORMAT,
    Architecture,
    BasePin,
    DistroPin,
    DriverPin,
    FilePin,
    ImageDigest,
    KernelPin,
    Pin,
    TreePin,
)
from provision.sources.candidates import PinnedVersion


def resolve_pin(settings: Settings, request: DriverRequest) -> Pin:
    """Decide every input of a build."""
    kernel = kernel_pin(request.kernel or own_kernel(settings), settings.architecture)
    request = replace(request, kernel=kernel.release)
    entry = settings.catalogue.entry(request.driver)
    recipe, untried = entry.recipe, settings.config.policy.untried
    # What no answer would change is refused before anyone is asked.
    cards = cards_for(settings, request)
    flavour = chosen_flavour(recipe, request.flavour, request.version, cards)
    choice = choose_tree(settings, kernel.release, request.distro)
    if choice is None:
        distro = builder = choose_distro(
            settings, packaged_distro(settings, request.distro, kernel.release)
        )
        tree, toolchain = None, None
    else:
        distro, builder = choice.distro, choice.toolchain or choice.distro
        tree, toolchain = prepare_tree(settings, choice, kernel.release, update=request.refresh)
    with ExitStack() as opened:
        session = None
        if choice is None or choice.toolchain is not None:
            session = SolvingSession(
                settings, builder, (recipe,), reference=request.base, update=request.refresh
            )
            opened.enter_context(session)
        else:
            _refuse_packages(recipe, distro)
        archive = session.archive if session else None
        wanted, context = version_context(settings, request, builder, archive)
        version = choose_version(
            recipe, flavour, wanted, kernel.release, context, untried=untried, force=request.force
        )
        closure = None
        if session is None:
            base = _complete_image(settings, distro, request.base)
        else:
            base = session.base()
            closure = session.solve(kernel.release, version.needs, toolchain)
    return make_pin(entry, flavour, version, kernel, distro, tree, base, closure)


def make_pin(
    entry: Entry,
    flavour: str,
    version: PinnedVersion,
    kernel: KernelPin,
    distro: DistroPin,
    tree: TreePin | None,
    base: BasePin,
    closure: Closure | None,
) -> Pin:
    """Return the Pin of what was decided.

    Args:
        distro: The kernel's.
        closure: None: the base image has everything.
    """
    recipe, variant = entry.recipe, version.variant
    with refusing(f"The version {version.version} of '{recipe.name}' can't be pinned."):
        driver = DriverPin(name=recipe.name, version=version.version, flavour=flavour)
    return Pin(
        driver=driver,
        kernel=kernel,
        distro=distro,
        base=base,
        compiler=closure.compiler if closure else None,
        headers=closure.headers if closure else (),
        packages=closure.tools if closure else (),
        closure=closure.packages if closure else (),
        sources=version.sources,
        patches=tuple(
            FilePin(name=patch.file, sha256=entry.patch_sha256(patch.file))
            for patch in recipe.patches
            if patch.applies_to(version=version.version, flavour=flavour, source=variant.label)
        ),
        recipe=recipe_digest(recipe, variant),
        format=FORMAT,
        tree=tree,
        urls={**(closure.urls if closure else {}), **version.urls},
    )


def _refuse_packages(recipe: Recipe, distro: DistroPin) -> None:
    """Refuse a driver whose source is packages, for a base image that has no archive."""
    serving = [source for source in recipe.sources if source.fits(source_names(distro))]
    if serving and all(source.is_packaged for source in serving):
        raise NotFoundError(
            f"The source of '{recipe.name}' is packages of Debian, and the base image that builds"
            f" for {distro.name} has no archive of Debian.",
            resolution="Have Debian's packages compile, with the kernel's tree: under [[trees]] in"
            ' /etc/provision/provision.toml, set kernels, path and toolchain = "debian:12".',
        )


def _complete_image(settings: Settings, distro: DistroPin, named: str | None) -> BasePin:
    """Return a base image that has the compiler and all tools."""
    image = developer_image(distro)
    own = settings.config.distro(distro.id).base_images.get(distro.version)
    # Not the distro's usual image: that has no compiler, and no kernel.
    reference = named or own or image
    if reference is None:
        raise NotFoundError(
            f"There is no image that has everything to build for {distro.id} {distro.version}.",
            resolution='Name the distro whose packages compile: toolchain = "debian:12" of'
            " [[trees]] in /etc/provision/provision.toml; or an image, with --base or there:"
            f' [distros.{distro.id}] base_images = {{ "{distro.version}" = "NAME:TAG" }}.',
        )
    asked = base_request(settings, distro, reference=reference)
    if reference == image:
        asked = asked._replace(can_be_made=True, is_published=False)
    return ensure_distro_base(settings, asked)


def kernel_pin(release: str, architecture: str) -> KernelPin:
    """Return a kernel of a person's or a host's; refuse what can't be one."""
    try:
        return KernelPin.model_validate({"release": release, "architecture": architecture})
    except ValidationError as error:
        known: tuple[str, ...] = get_args(Architecture)
        if architecture not in known:
            raise NotFoundError(
                f"The architecture '{architecture}' is not supported.",
                resolution=f"There are {', '.join(known)}.",
            ) from error
        raise UsageError(
            f"'{release}' is no kernel release.",
            resolution="Give it as 'uname -r' prints it, such as 6.1.0-47-amd64.",
            details="\n".join(map(str, mistakes_of(error))),
        ) from error


class PinFile(Pin):
    """A Pin with fields that are no inputs of the build."""

    digest_of_pin: ImageDigest = Field(alias="digest")
    image_of_pin: str = Field(alias="image")
    # Of what 'resolve --json' prints.
    exit_code: int = 0


def pin_document(pin: Pin) -> dict[str, Any]:
    """Return a Pin for ``json.dumps``: digest, image, every input, and addresses.

    Addresses with a password or a token are left out, because the file is for other machines.
    """
    inputs: dict[str, Any] = json.loads(pin.canonical_json())
    public = {
        sha256: found
        for sha256, known in pin.urls.items()
        if (found := [url for url in known if _is_public(url)])
    }
    beside = {"urls": public} if public else {}
    return {"digest": pin.digest, "image": pin.image, **inputs, **beside}


def _is_public(url: str) -> bool:
    """Return whether an address has no secret; addresses of SUSE have a token in their query."""
    parts = urlsplit(url)
    return not (parts.username or parts.password or parts.query)


def read_pin(settings: Settings, path: Path) -> Pin:
    """Return the Pin of a file, if the catalogue here has the recipe that it was made from."""
    file = load_json(path, PinFile)
    pin = Pin(**{name: getattr(file, name) for name in Pin.model_fields})
    if pin.digest != file.digest_of_pin:
        problem = f"it says {file.digest_of_pin}, and its content has {pin.digest}"
        raise ConfigError(str(path), [Mistake("digest", f"{problem}: the file was changed")])
    secrets = [
        Mistake(
            f"sources.{number}",
            "its address holds a password or token, which the artifact's labels would show to every"
            " user",
        )
        for number, source in enumerate(pin.sources)
        if redact(source.text) != source.text
    ]
    if secrets:
        raise ConfigError(
            str(path), secrets, resolution="Leave it out of driver.toml, and resolve again."
        )
    pinned_entry(settings.catalogue, pin)
    return pin
