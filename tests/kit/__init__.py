"""What tests, demo and bench share: private engines, base images, probes, fake programs.

Nothing here knows a driver. Everything that is started is stopped by its process id, and
everything that is made lies in a folder that its maker removes, or in the cache (`kit.cache`).
"""
