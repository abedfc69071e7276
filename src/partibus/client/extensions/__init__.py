"""Operations that only partibus has, on the connection of a blocking client (`partibus.client.sync`).

They serve the command line, the jobs and Spark: entities, policies, namespaces, cursors and ranges of positions, sinks,
the state of the cluster, traffic, and a broker's clock.
"""
