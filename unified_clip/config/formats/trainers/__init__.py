"""The formats of trainers, one module per trainer or family. `FORMATS` lists them."""
