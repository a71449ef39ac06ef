"""Which steps can a plan have, and what does each of them do on one rank?

:class:`Step` (step.py) counts what a rank receives. ``collective.py`` has the steps that
communicate, ``local.py`` those that do not. ``ops.py`` has the operations of one rank, which the
interpreter runs with numpy and ``live/move`` with torch.
"""
