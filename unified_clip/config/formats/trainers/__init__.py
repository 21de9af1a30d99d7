"""The formats of trainers, one module per trainer or family, by framework. `FORMATS` lists them."""
