"""The formats of trainers, one module per trainer, in folders by framework. `FORMATS` lists them."""
