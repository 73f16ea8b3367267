// Package common stands in for Tencent Cloud's SDK, which flannel's backend "tencent-vpc" is compiled with: not every
// module proxy has it, and no test uses that backend.
package common

func StringPtr(v string) *string { return &v }
func BoolPtr(v bool) *bool       { return &v }

func StringPtrs(values []string) []*string {
	found := make([]*string, len(values))
	for i := range values {
		found[i] = &values[i]
	}
	return found
}
