"""What fuse is made of: the graph of operations, the traffic of a grouping, the loop program."""
