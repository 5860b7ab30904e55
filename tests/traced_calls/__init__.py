"""The calls between the files of the product, written down by the processes that make them."""
