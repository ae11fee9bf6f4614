"""Speculative decoding: proposes draft tokens and verifies them together in one step.

Leviathan, Kalman and Matias, "Fast Inference from Transformers via Speculative Decoding" (arXiv 2211.17192). A step
that computes one token of a reply is bound by reading the weights; a few more tokens cost little. So a *proposer*
drafts the next tokens, the step computes them too, and a draft token is accepted if sampling picks that very token:
its row of logits is then the next token's, and a step is saved.

Drafts are tokens, not distributions, and each token is sampled with one uniform number that depends on the seed and
the position alone (:mod:`engine.sampling.sampler`). So the sampled token is the reply's token whatever the draft was:
the two are compared, and nothing is accepted or rejected at random. A draft token to which the model gives the
probability p is accepted with probability p, which is what the paper's rule comes to as well.

Where a grammar leaves a reply one token, that token is drafted whatever the settings say (:mod:`.forced_tokens`).
"""
