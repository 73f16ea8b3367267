"""The files of a release: wheel, chart, images, SBOMs, checksums. Two builds of a commit give the same bytes.

That is tested for all files but images.
"""
