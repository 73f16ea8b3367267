"""Development tools: the lab, API servers for tests, loads. No part of the product: not in its wheel or image."""
