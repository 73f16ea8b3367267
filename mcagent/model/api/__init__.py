"""The objects of the API as agent and controllers read them: one struct per kind, decoded once where it comes in.

Field names are the API's in snake case, types are those of the JSON. Nothing here says what a value means: texts
stay texts, and the code that uses one checks it.
"""
