"""What a host's accelerators are called: indices, UUIDs, PCI addresses, device nodes.

Written to ``/run/oci-decorator/devices/<vendor>.json``, where oci-decorator finds the node that
belongs to an index or a UUID. NVML is asked in a process of its own;
docs/decisions/07-store-and-modules.md says why.
"""
