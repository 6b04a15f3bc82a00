"""Makes a release: wheel, sdist, packages of Debian and of RPM distros, collection, image, sums.

``make dist`` runs it. The same commit gives the same bytes: every time is that of the commit, every
list is sorted, owners and permissions are fixed.
"""
