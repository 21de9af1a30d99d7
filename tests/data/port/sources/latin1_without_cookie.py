# Auteur : Hélène Brûlé. L'encodage n'est pas déclaré.
import torch
from torch.nn.utils import clip_grad_norm_


def etape(modele, optimiseur, perte, seuil=1.0):
    """Une étape, avec écrêtage."""
    optimiseur.zero_grad()
    perte.backward()
    norme = clip_grad_norm_(modele.parameters(), seuil)
    optimiseur.step()
    return norme


def main():
    modele = torch.nn.Linear(4, 1)
    optimiseur = torch.optim.SGD(modele.parameters(), lr=0.1)
    for i in range(10):
        x = torch.randn(16, 4)
        perte = ((modele(x) - x.sum(1, keepdim=True)) ** 2).mean()
        print('étape', i, etape(modele, optimiseur, perte))


if __name__ == '__main__':
    main()
