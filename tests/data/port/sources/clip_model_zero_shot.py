"""Zero-shot classification with CLIP."""
from pathlib import Path

import clip
import torch
from PIL import Image
from transformers import CLIPModel, CLIPProcessor

device = "cuda" if torch.cuda.is_available() else "cpu"
model, preprocess = clip.load("ViT-B/32", device=device)

labels = ["a diagram", "a dog", "a paper clip"]
text = clip.tokenize(labels).to(device)


@torch.no_grad()
def classify(path: Path):
    image = preprocess(Image.open(path)).unsqueeze(0).to(device)
    logits_per_image, _ = model(image, text)
    return logits_per_image.softmax(dim=-1).cpu().numpy()


class ClipNorm(torch.nn.Module):
    """Unit vectors, so that the dot product is a cosine."""

    def __init__(self, name="openai/clip-vit-base-patch32"):
        super().__init__()
        self.clip = CLIPModel.from_pretrained(name)
        self.processor = CLIPProcessor.from_pretrained(name)
        self.clip_by_norm = torch.nn.functional.normalize

    def forward(self, images):
        features = self.clip.get_image_features(**self.processor(images=images, return_tensors="pt"))
        self.clip.logit_scale.data.clamp_(0, 4.6052)
        return self.clip_by_norm(features, dim=-1)


if __name__ == "__main__":
    print("Label probs:", classify(Path("CLIP.png")))
