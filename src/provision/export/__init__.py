"""Artifacts in the forms that other systems load: Kubernetes' KMM, a DaemonSet, a sysext image."""
