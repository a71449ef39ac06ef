"""How libraries other than torch see a mesh; one file a library, imported where it is used."""
