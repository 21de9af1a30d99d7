"""The formats of trainers, one module per trainer, in folders by framework or subject. `FORMATS` lists them."""
