"""Sign-in with a provider of OpenID Connect: authorization code with PKCE, verified ID tokens, sign-out there too."""
