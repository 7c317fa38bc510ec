"""Tables, figures, the HTML report, TensorBoard."""
