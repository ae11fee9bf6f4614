"""Speculative decoding: tokens guessed ahead, and checked together in one step.

Leviathan, Kalman and Matias, "Fast Inference from Transformers via Speculative Decoding" (arXiv 2211.17192). A step
that reads one token of a reply waits for the weights; reading a few more with it costs little. So a *proposer* guesses
what follows, the step computes the guesses too, and each is right when sampling takes that very token: its row of
logits is then the next token's, and a step is saved.

Guesses are tokens, not distributions, and a token is drawn at one uniform number that depends on the seed and the
position alone (:mod:`engine.sampling.sampler`). So the drawn token is the reply's whatever was guessed: it is compared with the
guess, and nothing is accepted or rejected at random. A guess that the model gives the probability p is right with
probability p, which is what the paper's rule comes to as well.
"""
