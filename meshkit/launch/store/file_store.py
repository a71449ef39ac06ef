"""The file of a FileStore; see launch/file_store.py."""

from ..file_store import LOOK, check_file, file_error, open_file, reserve_room

__all__ = ["LOOK", "check_file", "file_error", "open_file", "reserve_room"]
