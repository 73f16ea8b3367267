"""Which gateways are alive, which are kept on standby for a while, and how a Node hands its traffic over."""
