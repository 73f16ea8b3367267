"""What leader, member and admission read and write alike: the objects of Antrea Multi-cluster. Pure."""
