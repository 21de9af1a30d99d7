from transformers import CLIPModel

model = CLIPModel.from_pretrained("clip-vit-base-patch32")
