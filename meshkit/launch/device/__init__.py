"""Which device does this rank compute on, and which backend do its collectives use?

``select_device``, ``select_backend``, ``check_backend`` and ``accelerator`` are in ``device.py``.
``ACCELERATORS``, the table of accelerators and their backends, is in ``accelerators.py``.
"""
