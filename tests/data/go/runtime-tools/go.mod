module example.org/runtime-tools

go 1.20

require github.com/opencontainers/runtime-tools v0.9.1-0.20221107090550-2e043c6bd626
