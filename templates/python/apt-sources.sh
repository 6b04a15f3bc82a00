#!/bin/sh
# Writes the apt sources of a build stage.
#
# usage: apt-sources.sh DISTRO CODENAME MIRROR SECURITY_MIRROR COMPONENT...
#
# An empty MIRROR stands for the mirror that the base image uses. The pinned versions come from all
# three suites of a release (release, updates, security), but many base images name only the first. So
# this script writes all three and removes what was configured.
#
# If other keys than the distro's sign the archive, the build context contains its keyring. The
# variable APT_SNAPSHOT accepts an index whose validity has ended.
set -eu

distro=$1
codename=$2
mirror=${3%/}
security=${4%/}
shift 4

keyring=/provision/archive-keyring.gpg
[ -e "$keyring" ] || keyring=/usr/share/keyrings/$distro-archive-keyring.gpg
valid_until=yes
[ -z "${APT_SNAPSHOT:-}" ] || valid_until=no

# Prints the address from which the base image is configured to load a suite. apt reads the
# configuration, because it has two formats.
configured() {
    apt-get update --print-uris |
        sed --quiet "s|^'\(.*[^/]\)/*/dists/$1/InRelease'.*|\1|p" | head --lines=1
}

if [ -z "$mirror" ]; then
    mirror=$(configured "$codename")
    : "${security:=$(configured "$codename-security")}"
fi
if [ -z "$mirror" ]; then
    echo >&2 "The base image has no apt source for $codename: give the build argument APT_MIRROR."
    exit 1
fi
# Debian's mirrors have the security suite beside the archive, under this name; Ubuntu's have it inside.
case $distro in
    debian) : "${security:=$mirror-security}" ;;
    *) : "${security:=$mirror}" ;;
esac

rm -f /etc/apt/sources.list /etc/apt/sources.list.d/*
cat > /etc/apt/sources.list.d/provision.sources <<EOF
Types: deb
URIs: $mirror
Suites: $codename $codename-updates
Components: $*
Signed-By: $keyring
Check-Valid-Until: $valid_until

Types: deb
URIs: $security
Suites: $codename-security
Components: $*
Signed-By: $keyring
Check-Valid-Until: $valid_until
EOF
