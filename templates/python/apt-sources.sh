#!/bin/sh
# Writes the apt sources of a build stage.
#
# usage: apt-sources.sh DISTRO CODENAME MIRROR SECURITY_MIRROR COMPONENT...
#
# An empty MIRROR stands for the one that the base image itself uses. Base images differ in which
# suites they name (many only the release, without updates), and the pinned versions come from all
# three of a release, so all three are written, in place of what was there.
#
# An archive that is not signed by the distro's own keys brings its keyring along. APT_SNAPSHOT says
# in the environment that its index counts although its time of validity is over.
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

# Address of the archive that a suite comes from, as the base image is configured. apt itself reads
# the configuration, in whichever of its two formats that is.
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
# Debian's mirrors carry the security suite beside the archive, under this name; Ubuntu's, in it.
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
