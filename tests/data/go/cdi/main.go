// Holds specifications to CDI's own schema and reader; prints what is wrong with them.
package main

import (
	"fmt"
	"os"

	"tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/schema"
)

func main() {
	for _, path := range os.Args[1:] {
		if err := schema.BuiltinSchema().ValidateFile(path); err != nil {
			fmt.Printf("schema: %v\n", err)
		}
		if _, err := cdi.ReadSpec(path, 0); err != nil {
			fmt.Printf("reader: %v\n", err)
		}
	}
}
