"""The three panels of the page, one file each."""
