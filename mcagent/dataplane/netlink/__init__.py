"""rtnetlink: links, addresses, neighbours, routes and policy rules of the Node."""
