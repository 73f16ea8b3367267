"""The desired state by owner: the resources of this Node, of its peers, of clusters and Services."""
