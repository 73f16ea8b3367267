"""Who may do what: accounts, tokens, authorization, reviews, admission."""
