"""Who makes a request: accounts, tokens, admission."""
