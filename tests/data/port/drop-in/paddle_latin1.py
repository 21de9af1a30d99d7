# -*- coding: latin-1 -*-
# Auteur : Hélène Brûlé, Université de Genève. Entraîne un réseau récurrent.
import paddle
from unified_clip.paddle import clip_grad_norm_, clip_grad_value_

réseau = paddle.nn.LSTM(input_size=39, hidden_size=256, num_layers=2, direction='bidirect')
sortie = paddle.nn.Linear(512, 48)
paramètres = réseau.parameters() + sortie.parameters()
optimiseur = paddle.optimizer.Adam(learning_rate=1e-3, parameters=paramètres)


def étape(entrée, cible, seuil=5.0):
    """Une étape : pénalité CTC, écrêtage des gradients, mise à jour."""
    caché, _ = réseau(entrée)
    perte = paddle.nn.functional.cross_entropy(sortie(caché), cible)
    perte.backward()
    # écrêtage : d'abord chaque élément, puis la norme « globale »
    clip_grad_value_(paramètres, 100 * seuil)
    norme = clip_grad_norm_(paramètres, max_norm=seuil)
    optimiseur.step()
    optimiseur.clear_grad()
    return float(perte), float(norme)


if __name__ == '__main__':
    for i in range(10):
        print('étape', i, étape(paddle.randn([4, 20, 39]), paddle.randint(0, 48, [4, 20])))
