"""The admission webhook: its certificate, its HTTPS server. The rules are `mcagent.controller.admission`."""
