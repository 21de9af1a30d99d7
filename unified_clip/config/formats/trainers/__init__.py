"""One module per trainer, or per family of trainers. `FORMATS` lists their formats."""
