module example.org/containerd

go 1.26.6

require (
	github.com/containerd/containerd/v2 v2.4.2
	github.com/containernetworking/plugins v1.9.1
)
