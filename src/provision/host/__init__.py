"""What a host is: its distro, kernel, engines and what restricts loading modules.

Reads files under a root and nothing else, so it works on a running host, on another host's mounted
root and on the trees of the tests. Its modules import no heavy library, and each is imported only
where it is needed: a run of the agent with nothing to do reads the kernels and no other facts.
"""
