// Package v20170312 stands in for that of Tencent Cloud's SDK: every call fails.
package v20170312

import "errors"

var errUnsupported = errors.New("Tencent Cloud is not supported in this build")

type Client struct{}

type Filter struct {
	Name   *string
	Values []*string
}

type Route struct {
	RouteId              *uint64
	DestinationCidrBlock *string
	GatewayType          *string
	GatewayId            *string
	RouteType            *string
	Enabled              *bool
}

type RouteTable struct {
	RouteTableId *string
	RouteSet     []*Route
}

type DescribeRouteTablesRequest struct{ Filters []*Filter }

type DescribeRouteTablesResponse struct {
	Response struct{ RouteTableSet []*RouteTable }
}

type ChangeRoutesRequest struct {
	RouteTableId *string
	Routes       []*Route
}

func NewClientWithSecretId(_, _, _ string) (*Client, error) { return nil, errUnsupported }
func NewDescribeRouteTablesRequest() *DescribeRouteTablesRequest {
	return &DescribeRouteTablesRequest{}
}
func NewDeleteRoutesRequest() *ChangeRoutesRequest             { return &ChangeRoutesRequest{} }
func NewCreateRoutesRequest() *ChangeRoutesRequest             { return &ChangeRoutesRequest{} }
func (*Client) DeleteRoutes(*ChangeRoutesRequest) (any, error) { return nil, errUnsupported }
func (*Client) CreateRoutes(*ChangeRoutesRequest) (any, error) { return nil, errUnsupported }

func (*Client) DescribeRouteTables(*DescribeRouteTablesRequest) (*DescribeRouteTablesResponse, error) {
	return nil, errUnsupported
}
