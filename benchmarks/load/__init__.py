"""An open-loop load: requests come when they come, whether or not the server has answered those before."""
