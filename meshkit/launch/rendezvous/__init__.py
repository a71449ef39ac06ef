"""How do the ranks of a job find one store and compare their requests?

``rendezvous.py`` has ``rendezvous``, ``open_store.py`` has ``open_store`` for TCP, files and one
process. For a job that mpirun started without an address, ``one_node.py`` has ``store_of_one_node``
and ``mpi.py`` has ``address_by_mpi``.
"""
