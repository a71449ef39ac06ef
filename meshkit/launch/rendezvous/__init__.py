"""How do the ranks of a job find one store and compare their requests?

``rendezvous.py`` has ``rendezvous``, ``open_store.py`` has ``open_store`` for TCP, files and one
process, and ``mpi.py`` has ``address_by_mpi``, for a job that mpirun started without an address.
"""
