# The image of the agent: both programs, as the packages of a release install them, and the script that keeps the
# host of a pod as its provision.toml says. `make dist` builds it in a folder with the packages and agent.sh. It has
# no client of Kubernetes, so that labels and events of nodes need the image of the Dockerfile beside this one.
ARG BASE=debian:13
FROM ${BASE}
COPY *.deb /packages/
RUN apt-get -q update \
 && apt-get -qy --no-install-recommends install ca-certificates gpgv /packages/*.deb \
 && rm -rf /packages /var/lib/apt/lists/* /var/cache/apt/* /var/log/apt /var/log/dpkg.log
# Beside oci-decorator, where it looks for the program that it gives to the host.
COPY agent.sh /usr/bin/provision-agent
ENTRYPOINT ["/bin/sh", "/usr/bin/provision-agent"]
