// Package errors stands in for that of Tencent Cloud's SDK.
package errors

type TencentCloudSDKError struct{}

func (*TencentCloudSDKError) Error() string { return "Tencent Cloud is not supported in this build" }
