"""The objects of Antrea Multi-cluster that leader, member and admission read and write. Pure."""
