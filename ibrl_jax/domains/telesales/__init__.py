"""Vehicle TeleSales: an outbound call, an agent with tools and a customer with a state."""
