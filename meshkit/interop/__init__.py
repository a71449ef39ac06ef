"""Hand a mesh to another library: one file a library, which imports it only when it is used."""
