# The image of the agent: both programs, as the packages of a release install them. `make dist` builds
# it in a folder with the packages. The one who runs it says what of the host it sees, and with which rights.
ARG BASE=debian:13
FROM ${BASE}
COPY *.deb /packages/
RUN apt-get -q update \
 && apt-get -qy --no-install-recommends install gpgv /packages/*.deb \
 && rm -rf /packages /var/lib/apt/lists/* /var/cache/apt/* /var/log/apt /var/log/dpkg.log
ENTRYPOINT ["/usr/bin/provision"]
CMD ["apply"]
